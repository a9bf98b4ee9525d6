"""Reports for people: timetables as text, pictures and traces."""
