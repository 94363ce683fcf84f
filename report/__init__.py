"""What happened to a text on its way to sound, as one picture and as words."""
