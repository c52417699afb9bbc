"""Starting and stopping engines. It speaks HTTP and `protocol`, never imports an engine, and needs no torch."""
