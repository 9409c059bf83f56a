// Goroutines whose stacks grow under deep recursion.
package main

import (
	"fmt"
	"sync"
)

//go:noinline
func deep(n int) int {
	if n == 0 {
		return 1
	}
	return deep(n-1) + 1
}

func main() {
	var group sync.WaitGroup
	var lock sync.Mutex
	sum := 0
	for i := 0; i < 1000; i++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			result := deep(n)
			lock.Lock()
			sum += result
			lock.Unlock()
		}(i % 200)
	}
	group.Wait()
	fmt.Println(sum)
}
