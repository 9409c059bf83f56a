// Arguments of all kinds, at every level of optimization.
package main

import "os"

//go:noinline
func take(text string, list []int, n int32, x float64) int {
	return len(text) + len(list) + int(n) + int(x)
}

func main() {
	sum := 0
	for n := 0; n < 2; n++ {
		sum += take(("x" + os.Args[0])[:1], []int{1, 2, 3}, int32(n), 0.5)
	}
	if sum == 0 {
		os.Exit(1)
	}
}
