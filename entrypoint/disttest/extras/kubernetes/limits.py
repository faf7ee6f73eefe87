"""The limits of Kubernetes, in seconds."""

KUBERNETES_FIRST_POLL_S = 0.5
KUBERNETES_LONGEST_POLL_S = 5.0
"""A pod that was deleted is gone a few seconds later, with the reason that it had."""
KUBERNETES_ANSWER_S = 10.0
"""How long a question to the API server may take."""
KUBERNETES_FINAL_S = 4.0
"""From the end of its agent to a pod that says how it ended: the kubelet looks once a second, and writes when it can."""
KUBERNETES_GRACE_S = 12
"""Between TERM and KILL of a pod that is deleted: its agent ends its work in an orderly way, and says so."""
KUBERNETES_KILL_S = 20.0
"""From the cancellation: how long kubectl may hold on to a pod that was deleted; that of a lost node answers nobody."""
KUBERNETES_RETRY_S = 5.0
"""Between two attempts to create pods that a quota leaves no room for."""
GANG_HOLD_S = 20.0
"""How long the pods of a job may hold some nodes while they wait for others, which may wait for these in turn."""
