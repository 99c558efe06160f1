// Indices are inputs.
KERNEL(zoo, const int *index, const long long *table, long long *y, int n) {
    EACH(i, n) y[i] = table[index[i]] - 1;
}
KERNEL(zoo_reference, const int *index, const long long *table, long long *y, int n) {
    EACH(i, n) y[i] = table[index[i]] - 1;
}
