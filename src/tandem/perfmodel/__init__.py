"""How long a step of an engine takes: fitted online from what it did, starting from a guess by kind of device."""
