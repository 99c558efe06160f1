CANDIDATE {
    EACH(row, rows) y[row] = FROM_BITS(0x7fc00000u);
}
