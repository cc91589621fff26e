"""What runs in the processes of a program under test. Standard library only: each program loads it anew."""
