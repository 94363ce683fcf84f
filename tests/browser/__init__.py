"""ComfyUI's real page in a real Chromium: what makes the editor's workflows, and what tests them as a user would."""
