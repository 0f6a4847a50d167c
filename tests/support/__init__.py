"""What tests share that is no test: helpers, fixtures of faults, made-up data. A test file imports from
here, never from another test file.
"""
