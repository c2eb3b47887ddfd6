"""Health checks of this machine, with hints for problems that stop builds."""
