"""Numbers of the documentation, written from the files under results/ so that none is typed by hand.

A page marks the place of a table, and of a number within a sentence, with comments:

    <!-- numbers: NAME WORDS -->             a table, or a list, between two lines
    <!-- end of numbers -->
    <!-- number: NAME WORDS -->…<!-- end -->  one number; the comment must not begin a line

    python -m benchmarks.numbers             writes every one of them anew (`make numbers`)
    python -m benchmarks.numbers --check     fails where a page and its files disagree, as a test does
"""
