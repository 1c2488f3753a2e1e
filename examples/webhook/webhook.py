"""An admission webhook in one file: every ConfigMap belongs to a team, and is told so when nobody said which.

    python webhook.py certificate DIR      a CA and a certificate for this machine, in DIR
    python webhook.py serve DIR            answer on loopback; the port is written to DIR/port
    python webhook.py configuration DIR    what to send to the API server, for `kubectl apply -f -`

It needs Python and the package `cryptography`, nothing of Muster: a Kubernetes cluster calls it the same way.
"""

import base64
import datetime
import http.server
import ipaddress
import json
import ssl
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BODY_BYTES_MAX = 8 << 20


def review(path: str, request: dict) -> dict:
    """The `response` to one question. It may be asked twice, and asking must change nothing."""
    labels = request["object"]["metadata"].get("labels") or {}
    if path == "/mutate":
        if "team" in labels:
            return {"allowed": True}
        patch = [{"op": "add", "path": "/metadata/labels", "value": {**labels, "team": "nobody"}}]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        said = f"no team was named, so {request['object']['metadata'].get('name', 'it')} belongs to nobody"
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded, "warnings": [said]}
    if labels["team"] == "red":
        message = f"team red is closed; ask another team of namespace {request['namespace']}"
        return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": message}}
    return {"allowed": True, "auditAnnotations": {"team": labels["team"]}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if length > BODY_BYTES_MAX:
            self.send_error(413)
            return
        asked = json.loads(self.rfile.read(length))
        request = asked["request"]
        response = {"uid": request["uid"], **review(self.path.partition("?")[0], request)}
        body = json.dumps({"apiVersion": asked["apiVersion"], "kind": "AdmissionReview", "response": response}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(directory: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    (directory / "port").write_text(str(server.server_address[1]))
    server.serve_forever()


def configuration(directory: Path) -> None:
    """Both configurations as one list. Only ConfigMaps of namespaces that want it are asked about."""
    port, bundle = (directory / "port").read_text(), base64.b64encode((directory / "ca.crt").read_bytes()).decode()

    def of(kind: str, path: str) -> dict:
        hook = {
            "name": f"{path}.teams.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}", "caBundle": bundle},
            "rules": [
                {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
            ],
            "namespaceSelector": {"matchLabels": {"teams": "required"}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
            "failurePolicy": "Fail",
        }
        api = "admissionregistration.k8s.io/v1"
        return {"apiVersion": api, "kind": kind, "metadata": {"name": "teams.example.com"}, "webhooks": [hook]}

    items = [of("MutatingWebhookConfiguration", "mutate"), of("ValidatingWebhookConfiguration", "validate")]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))


def certificate(directory: Path) -> None:
    """A CA that signs one certificate, for loopback, both good for a year."""
    directory.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "teams webhook CA")])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().issuer_name(ca_name).subject_name(subject).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=365))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    leaf_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "teams webhook")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "ca.crt").write_bytes(signed(ca_name, ca_key.public_key(), constraints, identifier))
    pair = directory / "server.pem"
    pair.touch(mode=0o600)
    pair.write_bytes(signed(leaf_name, key.public_key(), names, usage, issuer) + private)


if __name__ == "__main__":
    {"certificate": certificate, "serve": serve, "configuration": configuration}[sys.argv[1]](Path(sys.argv[2]))
