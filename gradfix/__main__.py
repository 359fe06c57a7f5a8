"""python -m gradfix"""

from gradfix.cli import main

main()
