!> The words of the command line.
module arguments
  use failure, only: refuse
  implicit none
  private

  integer, parameter :: word_length = 4096

  public :: word

contains

  function word(i) result(text)
    integer, intent(in) :: i
    character(:), allocatable :: text
    character(word_length) :: buffer
    integer :: length

    call get_command_argument(i, buffer, length)
    if (length > word_length) call refuse('an argument is too long')
    text = buffer(:length)
  end function word

end module arguments
