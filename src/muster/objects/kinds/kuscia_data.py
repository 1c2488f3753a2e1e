"""Kuscia's data: DomainData, DomainDataSource, DomainDataGrant. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.conditions import ConditionStatus
from muster.objects.kinds.base import Object
from muster.objects.kinds.kuscia_base import kuscia_resource
from muster.objects.kinds.shapes import Count, Foreign
from muster.objects.resources import Resource
from muster.objects.time import Timestamp


class DataCondition(Foreign):
    """Kuscia gives these no type."""

    status: ConditionStatus
    message: str = ""
    reason: str = ""
    last_update_time: Timestamp = ""


class DataStatus(Foreign):
    """Whether the data can be used."""

    phase: Literal["", "Available", "Unavailable", "Unknown"] = ""
    conditions: list[DataCondition] = field(default_factory=list)


class DataColumn(Foreign):
    name: str
    type: str
    comment: str = ""
    not_nullable: bool = False


class Partition(Foreign):
    type: Annotated[str, "`path` or `odps`."]
    fields: list[DataColumn] = field(default_factory=list)


class DomainDataSpec(Foreign):
    """A table, model, rule or report of one party."""

    relative_uri: Annotated[str, "Where it is within the data source."] = field(name="relativeURI")
    author: str
    name: str
    type: Annotated[str, "`table`, `model`, `rule`, `report` or `unknown`."]
    data_source: Annotated[str, "Id of the DomainDataSource."]
    attributes: dict[str, str] = field(default_factory=dict)
    partitions: Partition | None = None
    columns: list[DataColumn] = field(default_factory=list)
    vendor: Annotated[str, "Who made it: an engine's name, or `manual`."] = ""
    file_format: str = ""


class DomainData(Object, kw_only=True):
    """Data that a party has, described; the data itself stays where it is."""

    spec: DomainDataSpec
    status: DataStatus = field(default_factory=DataStatus)


class DomainDataSourceSpec(Foreign, kw_only=True):
    """Where a party keeps data."""

    uri: str = ""
    name: str
    data: Annotated[dict[str, str], "`encryptedInfo`: how to get in, for the party's own key only."] = field(
        default_factory=dict
    )
    type: Annotated[str, "`localfs`, `oss`, `mysql`, `odps`, `postgresql`, `hive`, `dameng`."]
    info_key: str = ""
    access_directly: bool = False


class DomainDataSource(Object, kw_only=True):
    """A place where a party keeps data."""

    spec: DomainDataSourceSpec
    status: DataStatus = field(default_factory=DataStatus)


class GrantLimit(Foreign, kw_only=True):
    """What the grant is good for."""

    expiration_time: Timestamp = ""
    use_count: Count = 0
    grant_mode: list[Literal["normal", "metadata", "file"]]
    flow_id: str = field(default="", name="flowID")
    components: list[str] = field(default_factory=list)
    initiator: str = ""
    input_config: str = ""


class DomainDataGrantSpec(Foreign, kw_only=True):
    """Leave for another party to use data."""

    author: str
    domain_data_id: str = field(name="domainDataID")
    signature: str = ""
    grant_domain: Annotated[str, "The party that may use it."]
    limit: GrantLimit | None = None
    description: dict[str, str] = field(default_factory=dict)


class UseRecord(Foreign):
    use_time: Timestamp = field(name="use_time")
    grant_domain: str = field(name="grant_domain")
    component: str = ""
    componet: Annotated[str, "The component, as Kuscia spells it."] = ""
    output: str = ""


class DomainDataGrantStatus(Foreign):
    phase: Literal["", "Ready", "Unavailable", "Unknown"] = ""
    message: str = ""
    use_records: list[UseRecord] = field(default_factory=list, name="use_records")


class DomainDataGrant(Object, kw_only=True):
    """One party's leave for another to use its data."""

    spec: DomainDataGrantSpec
    status: DomainDataGrantStatus = field(default_factory=DomainDataGrantStatus)


RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(DomainData, "domaindatas", short_names=("kdd",), has_status=True),
    kuscia_resource(DomainDataSource, "domaindatasources", short_names=("dds",), has_status=True),
    kuscia_resource(DomainDataGrant, "domaindatagrants", short_names=("ddg",), has_status=True),
)
