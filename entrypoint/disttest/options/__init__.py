"""Every option, declared once: flags, variables, the plugin's options, the action's inputs and the docs are made of it."""
