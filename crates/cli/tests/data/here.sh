# An ssh that reaches this machine by any name: OPTIONS -- HOST LINE.
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
