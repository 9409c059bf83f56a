// Arguments of all kinds, at every level of optimization.
package main

import "os"

//go:noinline
func take(text string, list []int, n int32, x float64) int {
	return len(text) + len(list) + int(n) + int(x)
}

//go:noinline
func give(text string, n int32) (string, error) {
	return text + "!"[:n], nil
}

//go:noinline
func half(n int32) float64 {
	return float64(n) / 2
}

//go:noinline
func pair(n int32) [2]int64 {
	return [2]int64{int64(n), -1}
}

func main() {
	sum := 0
	for n := 0; n < 2; n++ {
		sum += take(("x" + os.Args[0])[:1], []int{1, 2, 3}, int32(n), 0.5)
		text, _ := give(os.Args[0][:1], int32(n))
		sum += len(text) + int(half(int32(n))) + int(pair(int32(n))[0])
	}
	if sum == 0 {
		os.Exit(1)
	}
}
