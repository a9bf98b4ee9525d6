"""What people look at: timetables as text, pictures and traces."""
