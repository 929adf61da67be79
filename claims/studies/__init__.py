"""What is measured for people rather than judged: commands that write tables and pictures.

They train through the same run store as the claims. Nothing is compared with what they wrote.
"""
