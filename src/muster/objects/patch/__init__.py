"""Patches as Kubernetes knows them: JSON patch, merge patch, strategic merge patch, server-side apply."""

from muster.objects.patch.json_patch import apply_json_patch
from muster.objects.patch.managed import apply_server_side, track_update
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.patch.strategic import apply_strategic

__all__ = ["apply_json_patch", "apply_merge_patch", "apply_server_side", "apply_strategic", "track_update"]
