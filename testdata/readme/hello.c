#include <stdio.h>

int main(void) { return puts("built in a VM") < 0; }
