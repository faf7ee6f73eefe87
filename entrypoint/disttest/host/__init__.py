"""The machine: processes, devices, leases. One door each to what lies outside of this program."""
