from core.storymanager.rank.rank import Rank

__all__ = ["Rank"]
