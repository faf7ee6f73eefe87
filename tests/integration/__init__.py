"""Real runs of the command and the plugin, with real ranks on gloo."""
