"""May somebody do this? As hooks ask it: of the embedded server's own rules, or of the API server of a real cluster.

Webhooks see who writes and not what else they may do, so they ask with a SubjectAccessReview. On the event loop; `by_rbac`
reads memory only, `by_review` is one request for each question.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from muster.objects.status import Raw
from muster.server.authorization import Authorizer
from muster.server.rbac import Attributes
from muster.store.contract import Store
from muster.store.embedded.admission import Actor

Allows = Callable[[Actor, Attributes], Awaitable[bool]]


def by_rbac(authorizer: Authorizer) -> Allows:
    async def allows(actor: Actor, asked: Attributes) -> bool:
        return authorizer.decide(actor.user, actor.groups, asked).allowed

    return allows


def by_review(store: Store) -> Allows:
    async def allows(actor: Actor, asked: Attributes) -> bool:
        return await allowed_by_review(store, actor, asked)

    return allows


async def allowed_by_review(store: Store, actor: Actor, asked: Attributes) -> bool:
    resource = await store.resource("authorization.k8s.io", "SubjectAccessReview")
    attributes = {
        "verb": asked.verb,
        "group": asked.group,
        "resource": asked.resource,
        "subresource": asked.subresource,
        "namespace": asked.namespace,
        "name": asked.name,
    }
    review: Raw = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": actor.user,
            "groups": list(actor.groups),
            "uid": actor.uid,
            "extra": {key: list(values) for key, values in actor.extra.items()},
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }
    answer = await store.create(resource, review)
    return bool((answer.get("status") or {}).get("allowed"))
