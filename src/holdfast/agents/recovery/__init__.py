"""What becomes of an agent that did not end as it should; and going back to what it was."""
