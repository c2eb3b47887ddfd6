"""Pictures of a plan: DOT, SVG and Mermaid."""
