"""Scripts in Lua and JavaScript. `holdfast.scripts` is what programs import."""
