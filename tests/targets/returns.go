// Goroutines whose stacks grow under deep recursion: once with arguments, else for each line that
// is read.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

//go:noinline
func deep(n int) int {
	if n == 0 {
		return 1
	}
	return deep(n-1) + 1
}

func run() int {
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
	return sum
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println(run())
		return
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(run())
	}
}
