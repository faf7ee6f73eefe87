"""The devices of this machine. ``detect`` finds them and never imports torch."""
