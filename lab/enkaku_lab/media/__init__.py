"""How soon a click on a video plays, in a real browser, and what else it meets there: `media-start`.

`videos` makes what is watched, `ways` serve it over the line, `range_server` is the server of those that are files
somewhere, `browser` is Chromium, `watching` clicks and seeks and waits, `study` goes through all of it, and `report` draws
and judges what was kept.
"""
