"""Objects that several tests use."""

from __future__ import annotations

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: main, image: "nginx:1"}
"""

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: main
        image: nginx
        ports: [{containerPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  selector: {app: shop}
  ports: [{port: 80}]
"""


def widget_crd(group: str, scope: str = "Namespaced") -> str:
    return f"""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: widgets.{group}}}
spec:
  group: {group}
  scope: {scope}
  names: {{plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {{}}
      scale: {{specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {{name: Size, type: integer, jsonPath: .spec.size}}
    - {{name: Phase, type: string, jsonPath: .status.phase}}
    - {{name: Age, type: date, jsonPath: .metadata.creationTimestamp}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the widget shall be.
            required: [size]
            properties:
              size: {{type: integer, minimum: 1, maximum: 10, description: How big.}}
              color: {{type: string, enum: [red, green], default: red}}
              replicas: {{type: integer}}
          status:
            type: object
            properties:
              phase: {{type: string}}
              replicas: {{type: integer}}
"""


def widget(group: str, **spec: object) -> str:
    import json

    return f"apiVersion: {group}/v1\nkind: Widget\nmetadata: {{name: w}}\nspec: {json.dumps(spec)}\n"
