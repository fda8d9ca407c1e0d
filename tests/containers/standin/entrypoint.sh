#!/bin/sh
# As the vendors' entrypoints do: print a banner, then become the command.
echo "== a vendor's banner ==" >&2
exec "$@"
