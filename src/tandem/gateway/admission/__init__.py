"""Who waits and for how long: two bounded rooms, fair between keys, with exact wake-ups."""
