"""One request to the server of $KUBECONFIG, for what kubectl has no command for.

    python api.py METHOD PATH [CONTENT-TYPE [ACCEPT]] < BODY

Prints the code and, of a Status, the reason and the message; of anything else the body, when $SHOW is set.
"""

import base64
import json
import os
import ssl
import sys
import urllib.error
import urllib.request

import yaml

method, path, *types = sys.argv[1:]
with open(os.environ["KUBECONFIG"]) as file:
    config = yaml.safe_load(file)
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
if "certificate-authority" in cluster:
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
else:
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
headers = {"Authorization": f"Bearer {user['token']}"}
headers.update({name: text for name, text in zip(("Content-Type", "Accept"), types, strict=False) if text})
body = (sys.stdin.buffer.read() or None) if method != "GET" else None
request = urllib.request.Request(cluster["server"] + path, body, headers, method=method)
try:
    with urllib.request.urlopen(request, context=tls, timeout=30) as answer:
        code, kind, text = answer.status, answer.headers["Content-Type"], answer.read().decode(errors="replace")
except urllib.error.HTTPError as error:
    code, kind, text = error.code, error.headers["Content-Type"], error.read().decode()
found = json.loads(text) if "json" in kind and text.count("\n") < 2 else {}
if found.get("kind") == "Status":
    print(code, found.get("reason", found.get("status")), found.get("message", ""))
else:
    print(code)
    if os.environ.get("SHOW"):
        print(text.rstrip("\n"))
