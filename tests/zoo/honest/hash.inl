KERNEL(zoo, const unsigned *x, unsigned *y, int n) {
    EACH(i, n) {
        unsigned word = x[i] * 2654435761u + (unsigned)i;
        word ^= word >> 15;
        y[i] = word * 2246822519u;
    }
}
KERNEL(zoo_reference, const unsigned *x, unsigned *y, int n) {
    EACH(i, n) {
        unsigned long long word = (x[i] * 2654435761ull + (unsigned)i) & 0xffffffffull;
        word ^= word >> 15;
        y[i] = (unsigned)(word * 2246822519ull);
    }
}
