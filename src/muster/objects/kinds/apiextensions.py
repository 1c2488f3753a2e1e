"""Kubernetes' `apiextensions.k8s.io/v1`: kinds that users add. `muster.objects.crd` checks and reads them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated, Any

import msgspec

from muster.objects.kinds.admissionregistration import WebhookClientConfig
from muster.objects.kinds.base import Native, NativeObject, Strings, one_of
from muster.objects.kinds.references import StatusCondition
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC, Int32, keyed, merged

_field = msgspec.field


class CustomResourceDefinitionNames(Native):
    """What the kind is called."""

    plural: Annotated[str, "In URLs: lower case, many."]
    kind: Annotated[str, "In objects: CamelCase, one."]
    singular: Annotated[str, "On the command line: lower case, one; the kind in lower case when empty."] = ""
    short_names: Annotated[Strings, "Short forms for the command line."] = []
    list_kind: Annotated[str, "Kind of a list; the kind with `List` when empty."] = ""
    categories: Annotated[Strings, "Groups of kinds that it is listed with, such as `all`."] = []


class ExternalDocumentation(Native):
    """Where more is written."""

    description: Annotated[str, "What."] = ""
    url: Annotated[str, "Where."] = ""


class ValidationRule(Native):
    """A CEL expression that must hold. Stored; not evaluated here."""

    rule: Annotated[str, "The expression."]
    message: Annotated[str, "What to say when it does not hold."] = ""
    message_expression: Annotated[str, "The same, computed."] = ""
    reason: Annotated[str | None, "Reason word for the answer."] = None
    field_path: Annotated[str, "The field that is at fault."] = ""
    optional_old_self: Annotated[bool | None, "Also when there is no old object."] = None


class JSONSchemaProps(Native):
    """A part of a schema (OpenAPI v3, structural)."""

    type: Annotated[str, "object, array, string, integer, number or boolean."] = ""
    format: Annotated[str, "What kind of text or number."] = ""
    title: Annotated[str, "Heading."] = ""
    description: Annotated[str, "What it is, for people."] = ""
    default: Annotated[Any, "What is filled in when it is missing."] = None
    example: Annotated[Any, "An example."] = None
    nullable: Annotated[bool, "Whether null is allowed."] = False
    enum: Annotated[list[Any], ATOMIC, "The values that are allowed."] = []
    minimum: Annotated[float | None, "The least."] = None
    exclusive_minimum: Annotated[bool, "The least is not allowed itself."] = False
    maximum: Annotated[float | None, "The most."] = None
    exclusive_maximum: Annotated[bool, "The most is not allowed itself."] = False
    multiple_of: Annotated[float | None, "It must be a multiple of this."] = None
    min_length: Annotated[int | None, "Least number of characters."] = None
    max_length: Annotated[int | None, "Most characters."] = None
    pattern: Annotated[str, "Regular expression (RE2) that occurs in it."] = ""
    properties: Annotated[dict[str, JSONSchemaProps], "Members of an object, by name."] = {}
    additional_properties: Annotated[Any, "Schema of all members of a map."] = None
    required: Annotated[Strings, "Members that must be there."] = []
    min_properties: Annotated[int | None, "Least number of members."] = None
    max_properties: Annotated[int | None, "Most members."] = None
    items: Annotated[Any, "Schema of the elements of a list."] = None
    min_items: Annotated[int | None, "Least number of elements."] = None
    max_items: Annotated[int | None, "Most elements."] = None
    unique_items: Annotated[bool, "Not allowed; use a list of type set."] = False
    all_of: Annotated[list[JSONSchemaProps], ATOMIC, "All of these must hold."] = []
    any_of: Annotated[list[JSONSchemaProps], ATOMIC, "One of these must hold."] = []
    one_of: Annotated[list[JSONSchemaProps], ATOMIC, "Exactly one of these must hold."] = []
    not_: Annotated[JSONSchemaProps | None, "This must not hold."] = None
    external_docs: Annotated[ExternalDocumentation | None, "Where more is written."] = None
    x_kubernetes_preserve_unknown_fields: Annotated[bool | None, "Members that the schema does not name are kept."] = _field(
        default=None, name="x-kubernetes-preserve-unknown-fields"
    )
    x_kubernetes_embedded_resource: Annotated[bool, "It is a whole object, with apiVersion, kind and metadata."] = _field(
        default=False, name="x-kubernetes-embedded-resource"
    )
    x_kubernetes_int_or_string: Annotated[bool, "A number or a text."] = _field(
        default=False, name="x-kubernetes-int-or-string"
    )
    x_kubernetes_list_type: Annotated[str | None, "atomic, set or map: who may own parts of a list."] = _field(
        default=None, name="x-kubernetes-list-type"
    )
    x_kubernetes_list_map_keys: Annotated[Strings, "Members by which elements of a map list are told apart."] = _field(
        default_factory=list, name="x-kubernetes-list-map-keys"
    )
    x_kubernetes_map_type: Annotated[str | None, "granular or atomic: who may own parts of an object."] = _field(
        default=None, name="x-kubernetes-map-type"
    )
    x_kubernetes_validations: Annotated[list[ValidationRule], keyed("rule"), merged("rule"), "CEL rules."] = _field(
        default_factory=list, name="x-kubernetes-validations"
    )
    schema_: Annotated[str, "Not allowed."] = _field(default="", name="$schema")
    ref: Annotated[str | None, "Not allowed."] = _field(default=None, name="$ref")
    id: Annotated[str, "Not allowed."] = ""
    definitions: Annotated[dict[str, JSONSchemaProps], "Not allowed."] = {}
    dependencies: Annotated[dict[str, Any], "Not allowed."] = {}
    pattern_properties: Annotated[dict[str, JSONSchemaProps], "Not allowed."] = {}
    additional_items: Annotated[Any, "Not allowed."] = None


class CustomResourceValidation(Native):
    """How objects of a version are checked."""

    open_api_v3_schema: Annotated[JSONSchemaProps | None, "The schema."] = _field(default=None, name="openAPIV3Schema")


class CustomResourceSubresourceScale(Native):
    """Where the numbers for `kubectl scale` stand."""

    spec_replicas_path: Annotated[str, "How many are wanted, such as `.spec.replicas`."]
    status_replicas_path: Annotated[str, "How many there are, such as `.status.replicas`."]
    label_selector_path: Annotated[str | None, "Their labels as text."] = None


class CustomResourceSubresources(Native):
    """Parts of an object with URLs of their own."""

    status: Annotated[dict[str, Any] | None, "`status` is written on its own; then only it changes."] = None
    scale: Annotated[CustomResourceSubresourceScale | None, "Growing and shrinking."] = None


class CustomResourceColumnDefinition(Native):
    """A column of `kubectl get`."""

    name: Annotated[str, "Heading."]
    type: Annotated[str, "integer, number, string, boolean or date."]
    json_path: Annotated[str, "Where its value stands, such as `.spec.size`."] = _field(name="jsonPath")
    format: Annotated[str, "What kind of text or number."] = ""
    description: Annotated[str, "What it is."] = ""
    priority: Annotated[Int32, "0 shows always, more only with `-o wide`."] = 0


class SelectableField(Native):
    """A field for `--field-selector`."""

    json_path: Annotated[str, "Where it stands, such as `.spec.color`."] = _field(name="jsonPath")


class CustomResourceDefinitionVersion(Native):
    """One version of the kind."""

    name: Annotated[str, "v1, v1beta1, ..."]
    served: Annotated[bool, "Whether it can be used."]
    storage: Annotated[bool, "Whether objects are stored in it; exactly one is."]
    deprecated: Annotated[bool, "Those who use it are warned."] = False
    deprecation_warning: Annotated[str | None, "With these words."] = None
    schema: Annotated[CustomResourceValidation | None, "How objects are checked."] = None
    subresources: Annotated[CustomResourceSubresources | None, "Parts with URLs of their own."] = None
    additional_printer_columns: Annotated[list[CustomResourceColumnDefinition], ATOMIC, "Columns; NAME is always there."] = []
    selectable_fields: Annotated[list[SelectableField], ATOMIC, "Fields for `--field-selector`."] = []


class WebhookConversion(Native):
    """A webhook that converts between versions."""

    conversion_review_versions: Annotated[Strings, "Versions of ConversionReview that it understands."]
    client_config: Annotated[WebhookClientConfig | None, "How to reach it."] = None


class CustomResourceConversion(Native):
    """How objects get from one version to another."""

    strategy: Annotated[str, one_of("None", "Webhook"), "None changes apiVersion alone."]
    webhook: Annotated[WebhookConversion | None, "The webhook."] = None


class CustomResourceDefinitionSpec(Native):
    """What the kind is called and what its objects look like."""

    group: Annotated[str, "Its API group."]
    names: Annotated[CustomResourceDefinitionNames, "What it is called."]
    scope: Annotated[str, one_of("Cluster", "Namespaced"), "Whether objects are in namespaces."]
    versions: Annotated[list[CustomResourceDefinitionVersion], ATOMIC, "Its versions."]
    conversion: Annotated[CustomResourceConversion | None, "How objects get from one version to another."] = None
    preserve_unknown_fields: Annotated[bool, "Must be false."] = False


class CustomResourceDefinitionCondition(StatusCondition):
    """A named fact about a kind: NamesAccepted, Established, NonStructuralSchema, Terminating."""

    observed_generation: Annotated[int, "The generation that this speaks of."] = 0


class CustomResourceDefinitionStatus(Native):
    """Whether the kind is served."""

    conditions: Annotated[list[CustomResourceDefinitionCondition], keyed("type"), "Facts about it."] = []
    accepted_names: Annotated[CustomResourceDefinitionNames | None, "The names that it got."] = None
    stored_versions: Annotated[Strings, "Versions in which objects may be stored."] = []
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0


class CustomResourceDefinition(NativeObject, kw_only=True):
    """A kind that a user adds. Its name is `<plural>.<group>`."""

    spec: Annotated[CustomResourceDefinitionSpec, "What it is called and what its objects look like."]
    status: Annotated[CustomResourceDefinitionStatus | None, "Whether it is served."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=frozenset({"status"}),
        status_keeps=frozenset({"labels", "annotations", "ownerReferences"}),
        view=CustomResourceDefinition,
        columns=(Column(name="Created At", path=".metadata.creationTimestamp"),),
    ),
)
