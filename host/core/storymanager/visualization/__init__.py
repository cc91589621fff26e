from core.storymanager.visualization.visualization import print_table

__all__ = ["print_table"]
