KERNEL(zoo, const unsigned char *x, int *counts, int n) {
    EACH(i, n) ADD_TO(counts[x[i] % 16], 1);
}
KERNEL(zoo_reference, const unsigned char *x, int *counts, int n) {
    EACH(j, 16) {
        for (int i = 0; i < n; ++i) counts[j] += x[i] % 16 == j;
    }
}
