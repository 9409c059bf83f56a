// Functions without a stack check, called where a goroutine's stack is nearly at its end. Below that
// is the stack of another goroutine.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

//go:noinline
//go:nosplit
func last(n int) int { return n + 1 }

// Uses most of what the linker allows functions without a stack check.
//
//go:noinline
//go:nosplit
func large(n int) int {
	var words [84]int
	words[n&63] = n
	return last(words[n&63]) + words[(n+1)&63]
}

// One of these frames ends near the end of the stack.
//
//go:noinline
func down(n int) int {
	if n%4 == 0 {
		runtime.Gosched()
	}
	sum := large(n)
	if n > 0 {
		sum += down(n - 1)
	}
	return sum
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	const goroutines = 64
	var group sync.WaitGroup
	sums := make([]int, goroutines)
	for round := 0; round < rounds; round++ {
		for i := range sums {
			group.Add(1)
			go func() {
				defer group.Done()
				sums[i] += down(40 + i)
			}()
		}
		group.Wait()
	}
	total := 0
	for _, sum := range sums {
		total += sum
	}
	fmt.Println(total)
}
