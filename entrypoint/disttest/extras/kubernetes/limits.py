"""Time limits of Kubernetes, in seconds."""

KUBERNETES_FIRST_POLL_S = 0.5
KUBERNETES_LONGEST_POLL_S = 5.0
"""Longest interval of polls. A deleted pod disappears a few seconds later, together with its reason."""
KUBERNETES_ANSWER_S = 10.0
"""Time limit of a request to the API server."""
KUBERNETES_FINAL_S = 4.0
"""Time from the end of an agent until its pod reports how it ended; the kubelet polls once a second."""
KUBERNETES_GRACE_S = 12
"""Time between TERM and KILL of a deleted pod: its agent ends its work and reports the end."""
KUBERNETES_KILL_S = 20.0
"""Time after a cancellation for which kubectl may stay attached; the pod of a lost node never answers."""
KUBERNETES_RETRY_S = 5.0
"""Pause between attempts to create pods that exceed a quota."""
GANG_HOLD_S = 20.0
"""Time for which a job may hold some nodes while it waits for others, which may be waiting for these."""
