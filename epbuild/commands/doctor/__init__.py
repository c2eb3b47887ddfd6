"""Health checks of this machine, with remedies for problems that stop builds."""
