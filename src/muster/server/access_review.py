"""Questions to the API server of a real cluster: may somebody do this? Answered by a SubjectAccessReview.

For webhooks, which see who writes and not what else they may do. On the event loop; one request each.
"""

from __future__ import annotations

from muster.objects.status import Raw
from muster.server.rbac import Attributes
from muster.store.contract import Store
from muster.store.embedded.admission import Actor


async def allowed_by_review(store: Store, actor: Actor, asked: Attributes) -> bool:
    resource = await store.resource("authorization.k8s.io", "SubjectAccessReview")
    attributes = {"verb": asked.verb, "group": asked.group, "resource": asked.resource, "name": asked.name}
    review: Raw = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": actor.user,
            "groups": list(actor.groups),
            "uid": actor.uid,
            "extra": {key: list(values) for key, values in actor.extra.items()},
            "resourceAttributes": attributes,
        },
    }
    answer = await store.create(resource, review)
    return bool((answer.get("status") or {}).get("allowed"))
