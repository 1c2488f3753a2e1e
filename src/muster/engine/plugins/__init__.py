"""The plugins that come with Muster, one file each."""
