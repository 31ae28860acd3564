"""What a hostile tenant or a dying driver may try, and what gpunode makes of it."""
