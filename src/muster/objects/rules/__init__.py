"""What a schema cannot say about Kubernetes' own kinds; `muster.objects.validation` finds the rules of a kind. Pure."""
