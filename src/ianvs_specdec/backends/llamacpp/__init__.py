"""llama.cpp through its Python binding."""
