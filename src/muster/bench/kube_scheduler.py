"""The real kube-scheduler as a child process, with the settings under which it is compared.

No leader election, QPS and burst of 5,000, protobuf, default plugins; `percentage_of_nodes` 0 is its own default (fewer nodes
the larger the cluster). Blocking; the child dies with this process.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
import urllib.request

import msgspec
import yaml

from muster.bench.kubernetes import START_TIMEOUT_S, ControlPlane, NotAvailable, NotStarted, end, free_ports, spawn
from muster.objects.status import Raw

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+|NaN)$")


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between uses. With `extender_url`, a filter extender there is asked after the scheduler's own filters."""

    scheduler_name: str = "default-scheduler"
    percentage_of_nodes: int = 0
    qps: int = 5000
    preemption: bool = True
    extender_url: str = ""


class KubeScheduler:
    """`with KubeScheduler(plane, config) as scheduler:` it runs, and has read all objects before it schedules the first pod."""

    def __init__(self, plane: ControlPlane, config: SchedulerConfig, *, name: str = "kube-scheduler") -> None:
        self.plane = plane
        self.config = config
        self.log_path = plane.work_dir / f"{name}.log"
        self._config_path = plane.work_dir / f"{name}.yaml"
        (self.metrics_port,) = free_ports(1)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "it is not running"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        program = self.plane.assets / "kube-scheduler"
        if not program.exists():
            raise NotAvailable(f"{self.plane.assets} holds no kube-scheduler; unset KUBEBUILDER_ASSETS to have one built")
        self._config_path.write_text(yaml.safe_dump(self._configuration()))
        command = [str(program), f"--config={self._config_path}", "--secure-port=0"]
        # Up to 1.22 the insecure port is what the configuration's addresses are about; later ones have the secure port only.
        self._child = spawn(command, self.log_path)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._address}/healthz", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.02)
        self.stop()
        raise NotStarted(f"kube-scheduler did not become ready; its log ends:\n{self.log_tail()}")

    def stop(self) -> None:
        if self._child is not None:
            end(self._child)
            self._child = None

    def __enter__(self) -> KubeScheduler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])

    def metrics(self) -> dict[str, float]:
        """Every sample, by its name and labels as they are printed."""
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {}
        for line in text.splitlines():
            if match := _SAMPLE.match(line):
                labels = f"{{{match[2]}}}" if match[2] is not None else ""
                found[match[1] + labels] = float(match[3])
        return found

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}"

    def _configuration(self) -> Raw:
        config = self.config
        profile: Raw = {"schedulerName": config.scheduler_name}
        if not config.preemption:
            profile["plugins"] = {"postFilter": {"disabled": [{"name": "*"}]}}
        document: Raw = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.plane.kubeconfig_path),
                "contentType": "application/vnd.kubernetes.protobuf",
                "qps": config.qps,
                "burst": config.qps,
            },
            "healthzBindAddress": f"127.0.0.1:{self.metrics_port}",
            "metricsBindAddress": f"127.0.0.1:{self.metrics_port}",
            "percentageOfNodesToScore": config.percentage_of_nodes,
            "profiles": [profile],
        }
        if config.extender_url:
            document["extenders"] = [
                {
                    "urlPrefix": config.extender_url,
                    "filterVerb": "filter",
                    "nodeCacheCapable": True,
                    "enableHTTPS": False,
                    "httpTimeout": "30s",
                }
            ]
        return document
