"""One file per API group, each with its views and `RESOURCES`; `muster.objects.catalog` joins them. Pure."""
